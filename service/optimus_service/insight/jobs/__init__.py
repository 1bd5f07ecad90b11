"""What is shown of each job: the bodies of answers, how far it is, what it lost and uses, why it has what it has."""
