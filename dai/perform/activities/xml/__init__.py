"""Activities over collections of XML documents."""
