"""Models of Hugging Face Transformers in and out: settings, names and files of weights."""
