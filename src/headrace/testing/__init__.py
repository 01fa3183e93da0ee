"""Parts of tests, also for third parties: contract suites, a proxy that breaks connections, the resume oracle."""
