"""What a step costs: memory, activations, the profile; and what its inputs do."""
