"""The newest complete checkpoint of a folder, by what each format itself needs. Runs as the job's user, on any node."""
