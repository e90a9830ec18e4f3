"""Ways to run one step on one or many processes: six verbs each, one file each."""
