"""Plans for people: nodes, their labels and figures, as text, JSON and SVG."""
