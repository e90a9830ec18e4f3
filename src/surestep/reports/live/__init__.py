"""Pages that change while runs run: what they show, and the server that they ask."""
