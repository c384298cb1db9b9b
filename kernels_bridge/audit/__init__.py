"""The audit: proof by numbers that a built model keeps the documents of a row apart, or where it does not."""
