"""Reading published data sets from files, and changing examples on the way to the model. Nothing is downloaded."""
