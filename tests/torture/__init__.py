"""Kill runs, corrupt their files and fill their disks, and check that nothing is lost."""
