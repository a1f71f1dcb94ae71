"""The endpoints, one module a subject: each declares its operations and answers them."""
