"""`surestep tune`: measures what makes a recipe fast, and proves what keeps its numbers."""
