"""`optimus study`: read a table of logs, draw the pictures, write the report. The figures come from
`optimus_models.study`."""
