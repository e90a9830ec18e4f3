"""Why a step was not finite."""
