"""A tree over several evaluators: where exchanges pay, its fragments, and who runs them."""
