"""Reads that span segments: slices for fetches, searches by timestamp, and explanations of both.

Start with `reading`.
"""
