"""What tests of headrace are made of, and of third parties: contract suites, loopback servers, the resume oracle."""
