"""What the coordinator does about each event, by subject. Pure: state and event in, effects out."""
