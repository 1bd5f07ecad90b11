"""Examples for training: read from files, changed on the way to the model, made ahead. Nothing is downloaded."""
