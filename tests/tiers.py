"""The two tiers of the tests: `make test` runs the quick ones, `make test-all` runs all of them.

A test gets the mark `slow` if its id starts with an entry of SLOW: a folder, a file, a test, or a
test with the start of its parameters. In a test file, `@pytest.mark.slow("reason")` does the same.
Every test that needs a compiler or a library of the extra `dev-all` is slow, and so is a test that
takes more than two seconds of processor time.
"""

from pathlib import Path

DRAWS = "names hundreds of curves"
EVERY_LIBRARY = "needs every library of dev-all"
FITS = "fits Gaussian processes"
IMPORTS = "imports every module in a process of its own"
KILLS = "kills or interrupts runs"
LAUNCHES = "launches several processes"
LOADS_IN_WORKERS = "starts data workers again and again"
MEMORY = "measures the memory of processes"
NEEDS_BNB = "needs bitsandbytes"
NEEDS_COMPILER = "needs a C++ compiler"
NEEDS_DEEPSPEED = "needs deepspeed"
NEEDS_TRANSFORMERS = "needs transformers"
PRODUCT = "tries one property with every name, option or damaged file"
REGRESSIONS = "writes the programs that found faults a second time, in plain PyTorch"
SYNCS = "syncs a database again and again"
TRAINS = "trains to the end of a curve"
WAITS = "waits for seconds"

SLOW = {
    "tests/base/test_posix.py": LAUNCHES,
    "tests/engine/distributed/test_hang_monitor.py::test_process_of_a_rank_has_ended": WAITS,
    "tests/mirror/test_uploader.py::test_mirror_that_is_full_does_not_stop": WAITS,
    "tests/mirror/test_uploader.py::test_slow_mirror_does_not_delay": WAITS,
    "tests/cli/test_hostile_run.py": PRODUCT,
    "tests/cli/test_interrupt.py": KILLS,
    "tests/cli/test_launch.py": LAUNCHES,
    "tests/cli/test_new.py::test_signaled_job_is_requeued_until_its_run_is_finished": KILLS,
    "tests/cli/test_options.py::test_deepspeed_keys_can_be_typed_as_json_or_given_in_a_file": (
        NEEDS_DEEPSPEED
    ),
    "tests/cli/test_options.py::test_typed_option_is_planned_and_shown_as_set_by_the_user": (
        "needs bitsandbytes, deepspeed and a C++ compiler"
    ),
    "tests/cli/test_runs.py::test_run_is_running_until_it_is_killed": KILLS,
    "tests/cli/test_startup.py": LAUNCHES,
    "tests/cli/test_without_torch.py": LAUNCHES,
    "tests/cli/test_watch.py::test_script_starts_and_prints_as_without_watch": LAUNCHES,
    "tests/doctor/curves/test_page.py": DRAWS,
    "tests/doctor/curves/test_states.py::test_being_stuck": DRAWS,
    "tests/doctor/curves/test_states.py::test_curve_of_a_correct_run": DRAWS,
    "tests/doctor/curves/test_states.py::test_state_is_found": DRAWS,
    "tests/doctor/curves/test_states.py::test_states_do_not_depend": DRAWS,
    "tests/doctor/curves/test_states.py::test_step_is_that_of_the_best": DRAWS,
    "tests/doctor/curves/test_trainings.py": TRAINS,
    "tests/doctor/test_planted.py::test_no_correct_script_is_reported_while_it_runs": (
        "runs each correct script"
    ),
    "tests/doctor/test_planted.py::test_planted_mistakes_are_found": ("runs hundreds of scripts"),
    "tests/doctor/watch/test_rules.py::test_good_examples_run": "runs each correct example",
    "tests/doctor/watch/test_hooks.py::test_compiled_model_trains_bitwise": "compiles a model",
    "tests/engine/checks/test_additivity.py::test_no_registered_or_torch_loss_is_rejected": PRODUCT,
    "tests/engine/checks/test_metric_parts.py::test_metric_that_is_a_mean_is_accepted": PRODUCT,
    "tests/engine/data/others/": "needs datasets, torchdata and webdataset",
    "tests/engine/data/test_batch_loader.py::"
    "test_any_type_of_data_gives_the_same_samples[spawn]": LAUNCHES,
    "tests/engine/data/test_workers.py": KILLS,
    "tests/engine/evaluate/test_bounded_memory.py": MEMORY,
    "tests/engine/model/test_activation_checkpointing.py": NEEDS_TRANSFORMERS,
    "tests/engine/optim/test_state_size.py::"
    "test_estimated_optimizer_memory_matches_the_actual_state[adamw8bit": NEEDS_BNB,
    "tests/engine/parallel/test_deepspeed_config.py": NEEDS_DEEPSPEED,
    "tests/engine/parallel/test_single.py::test_first_step_imports": LAUNCHES,
    "tests/engine/parallel/test_plugin.py": LAUNCHES,
    "tests/engine/schedule/test_transformers.py": NEEDS_TRANSFORMERS,
    "tests/engine/step/test_gc.py::test_new_process_imports_torch": LAUNCHES,
    "tests/engine/test_allocator.py::test_activations_use_huge_pages": MEMORY,
    "tests/engine/test_allocator.py::test_allocator_does_not_change_results": MEMORY,
    "tests/engine/test_allocator.py::test_retained_memory_is_returned": MEMORY,
    "tests/engine/test_allocator.py::test_steps_with_retained_memory_have_no_page_faults": MEMORY,
    "tests/engine/test_device.py::test_device_without_float64_trains": (
        "gives torch a device in a process of its own"
    ),
    "tests/engine/test_plugins.py::test_broken_plugin_option": LAUNCHES,
    "tests/engine/test_plugins.py::test_plugin_option_is": LAUNCHES,
    "tests/engine/test_plugins.py::test_plugins_train_by_name": ("trains in a process of its own"),
    "tests/gpu/": "needs an accelerator",
    "tests/laws/test_changing_buffers.py::test_killed_run": KILLS,
    "tests/laws/test_independence.py::test_draws_of_a_run_are_independent[a stream of workers]": (
        LOADS_IN_WORKERS
    ),
    "tests/laws/test_independence.py::test_draws_of_a_run_are_independent[workers]": (
        LOADS_IN_WORKERS
    ),
    "tests/laws/test_law_1_hugging_face.py": NEEDS_TRANSFORMERS,
    "tests/laws/test_law_2_extending.py::test_run_of_any_optimizer_can_be_extended[adamw8bit": (
        NEEDS_BNB
    ),
    "tests/laws/test_law_2_kills.py": KILLS,
    "tests/laws/test_law_2_lora.py": "needs peft and transformers",
    "tests/laws/test_law_2_rollback_kills.py": KILLS,
    "tests/laws/test_law_2_stream_libraries.py": LOADS_IN_WORKERS,
    "tests/laws/test_law_2_stream_states.py": LOADS_IN_WORKERS,
    "tests/laws/test_law_2_wrong_stream_states.py": LOADS_IN_WORKERS,
    "tests/laws/test_law_3_memory_and_speed.py::test_compil": NEEDS_COMPILER,
    "tests/laws/test_law_3_memory_and_speed.py::test_every_block_is_compiled": NEEDS_COMPILER,
    "tests/laws/test_law_3_memory_and_speed.py::test_model_of_only_torch": NEEDS_COMPILER,
    "tests/laws/test_law_3_memory_and_speed.py::test_profile_of_the_second_step": NEEDS_COMPILER,
    "tests/laws/test_law_4_draws.py::test_optimizers_by_name_draw_nothing[adamw8bit": NEEDS_BNB,
    "tests/laws/test_law_7_kills.py": KILLS,
    "tests/laws/test_law_9_changes.py::test_allowed_change_is_seen_in_the_next_steps": PRODUCT,
    "tests/laws/test_law_9_changes.py::test_change_that_needs_no_permission_is_applied": PRODUCT,
    "tests/laws/test_law_9_changes.py::"
    "test_change_without_an_effect_is_rejected[optim.min_8bit_size]": NEEDS_BNB,
    "tests/laws/test_law_9_honest.py::test_set_value_is_the_planned_value[compile": (
        NEEDS_COMPILER
    ),
    "tests/laws/test_law_9_honest.py::test_set_value_is_the_planned_value[optim.min_8bit_size]": (
        NEEDS_BNB
    ),
    "tests/laws/test_law_9_honest.py::test_set_value_is_the_planned_value[parallel.deepspeed]": (
        NEEDS_DEEPSPEED
    ),
    "tests/laws/test_law_9_honest.py::test_set_value_is_the_planned_value[parallel.zero_stage]": (
        NEEDS_DEEPSPEED
    ),
    "tests/laws/test_law_9_rejections.py::test_every_rejection_of_the_rules_is_tried": (
        EVERY_LIBRARY
    ),
    "tests/laws/test_law_9_rejections.py::"
    "test_impossible_option_is_rejected_with_a_remedy[compile_blocks": NEEDS_COMPILER,
    "tests/laws/test_law_9_rejections.py::"
    "test_impossible_option_is_rejected_with_a_remedy[parallel.strategy": (
        "needs accelerate, deepspeed and a C++ compiler"
    ),
    "tests/laws/test_law_9_rejections.py::"
    "test_value_that_the_message_proposes_is_accepted[compile_blocks": NEEDS_COMPILER,
    "tests/laws/test_law_9_rejections.py::"
    "test_value_that_the_message_proposes_is_accepted[optim.min_8bit_size]": NEEDS_BNB,
    "tests/laws/test_law_9_rejections.py::"
    "test_value_that_the_message_proposes_is_accepted[parallel.deepspeed": NEEDS_DEEPSPEED,
    "tests/laws/test_law_9_rejections.py::"
    "test_value_that_the_message_proposes_is_accepted[parallel.zero_stage": NEEDS_DEEPSPEED,
    "tests/laws/test_mutations.py": "breaks each law and runs its checks again",
    "tests/laws/test_registries.py::test_every_name_of_every_registry": PRODUCT,
    "tests/laws/test_registries.py::test_every_name_of_every_registry[optimizer adamw8bit": (
        NEEDS_BNB
    ),
    "tests/mirror/test_rollback.py": KILLS,
    "tests/mirror/test_s3.py": "starts an S3 server, and needs s3fs and moto",
    "tests/mirror/test_ssh.py": "starts an SSH server, and needs paramiko",
    "tests/multi_rank/": LAUNCHES,
    "tests/recipes/test_digits.py::test_digits_reaches_its_accuracy": TRAINS,
    "tests/recipes/test_hf.py": NEEDS_TRANSFORMERS,
    "tests/record/checkpoint/test_concurrent_processes.py": LAUNCHES,
    "tests/record/checkpoint/test_hostile.py": PRODUCT,
    "tests/record/checkpoint/test_ranks.py": LAUNCHES,
    "tests/record/test_export.py::test_plain_torch_loads_an_export_strictly": LAUNCHES,
    "tests/record/test_hostile_run.py": PRODUCT,
    "tests/record/test_prediction_files.py::test_killed_process": KILLS,
    "tests/test_architecture.py::test_every_module_imports_alone": IMPORTS,
    "tests/test_docstrings.py::test_examples_print_the_shown_output[search]": LAUNCHES,
    "tests/testing/test_service_trackers.py": "needs mlflow and wandb",
    "tests/torture/test_cases.py": KILLS,
    "tests/torture/test_forked.py": KILLS,
    "tests/torture/test_fuzz_checkpoints.py": "corrupts the files of runs",
    "tests/torture/test_fuzz_runs.py": "corrupts the files of runs",
    "tests/torture/test_groups.py": KILLS,
    "tests/torture/test_outcome.py": KILLS,
    "tests/torture/test_torture.py": "kills runs and corrupts their files",
    "tests/tracking/test_lost_answers.py": "needs mlflow, and starts its server",
    "tests/tracking/test_mlflow.py": "needs mlflow, and starts its server",
    "tests/tracking/test_outages.py": "kills a server and fills a disk",
    "tests/tracking/test_mlflow_store.py": "needs mlflow, and kills a process that uses it",
    "tests/tracking/test_secrets.py": "needs mlflow and wandb",
    "tests/tracking/test_wandb.py": "needs wandb, and starts its service",
    "tests/trainer/test_fit.py::test_ctrl_c_stops_after_the_step_and_saves": KILLS,
    "tests/trainer/test_fit.py::test_second_ctrl_c_stops_immediately": KILLS,
    "tests/trainer/test_launch.py::test_signal_that_torchrun_does_not_handle": LAUNCHES,
    "tests/trainer/test_predict_hugging_face.py": NEEDS_TRANSFORMERS,
    "tests/trainer/test_signals.py": KILLS,
    "tests/tuning/test_kills.py": KILLS,
    "tests/reports/live/test_live_page.py": "draws pages in Chromium",
    "tests/reports/test_page.py": "draws pages in Chromium",
    "tests/tuning/test_page.py": "opens pages in Chromium",
    "tests/tuning/test_postgres.py": "starts a PostgreSQL server and processes",
    "tests/tuning/test_samplers.py::"
    "test_proposal_is_that_of_optuna_with_the_same_seed_and_trials[gp": FITS,
    "tests/tuning/test_samplers.py::test_several_objectives_work_or_are_rejected[none-gp": FITS,
    "tests/tuning/test_study.py::test_threads_claim_exactly_the_whole_number[sqlite": SYNCS,
    "tests/tuning/test_report.py": "makes reports of whole studies",
    "tests/tuning/test_trial.py": LAUNCHES,
    "tests/twice/": REGRESSIONS,
    "tests/warm/": "starts the server of the slow tests, which takes seconds",
}


_LIBRARIES = ("accelerate", "bitsandbytes", "deepspeed", "peft", "transformers")  # of reasons


def is_slow(nodeid: str) -> bool:
    """Whether the table marks a test, or all tests of a file or folder, as slow."""
    return nodeid.startswith(tuple(SLOW))


def may_have_slow(file: str) -> bool:
    """Whether the table or a mark in a test file, given from the root, may make a test slow."""
    text = Path(__file__).parents[1].joinpath(file).read_text(encoding="utf-8")
    return (
        is_slow(file)
        or any(entry.startswith(f"{file}::") for entry in SLOW)
        or "pytest.mark.slow" in text
    )


def libraries_of(nodeid: str) -> list[str]:
    """Return the libraries of dev-all that the reason of a slow test says it needs."""
    reasons = " ".join(reason for entry, reason in SLOW.items() if nodeid.startswith(entry))
    return [name for name in _LIBRARIES if name in reasons or EVERY_LIBRARY in reasons]
