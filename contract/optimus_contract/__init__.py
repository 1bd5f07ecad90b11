"""What the service, the tasks of jobs and the command line say to each other. Needs only the standard library.

`job`: the specification of a job. `project`: a quota. `telemetry`, `membership`, `result`: what tasks report and ask.
`answers`: what the REST API answers. `message` has what all of them are made of, `codec` reads and writes them as JSON.
Field names are those of docs/glossary.md.
"""
