"""Config -> resolve -> Plan; data -> steps -> train_step -> StepResult -> Callback."""
