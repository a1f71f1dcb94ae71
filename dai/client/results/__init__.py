"""What comes back: results in every form, response documents, files, data frames."""
