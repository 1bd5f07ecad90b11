"""How answers are shown: tables, the live view, plots, and the words and numbers in them. Pure but for the plots."""
