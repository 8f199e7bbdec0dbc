"""Read and filter records for the console within budgets, and show them as text or hexadecimal digits."""
