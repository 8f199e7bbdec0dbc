"""Retention of one log: which of its oldest segments can be removed (`rules`), and their removal (`removal`)."""
