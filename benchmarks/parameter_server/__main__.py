"""`python -m benchmarks.parameter_server`: see the package."""

if __name__ == "__main__":
    # Imported here: servers are processes that begin with this module, and are to be without torch.
    from benchmarks.parameter_server.command import main

    main()
