"""Parts of tests, also for third parties: contract suites, loopback servers, the resume oracle."""
