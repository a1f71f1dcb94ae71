"""Results in every form: response documents, files, data frames."""
