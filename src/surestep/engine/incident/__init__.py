"""After a step that was not finite: what made it so, where, and which samples do it alone."""
