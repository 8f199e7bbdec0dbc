"""Records for the console: read and filtered within budgets, shown as text or in hexadecimal digits."""
