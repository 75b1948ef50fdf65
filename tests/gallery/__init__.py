"""Sixty answers that are hard to show, and what a Markdown library sees in them."""
