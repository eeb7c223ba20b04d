"""A black-box load generator for servers that speak OpenAI's API: workloads, an HTTP client, the driver, the figures."""
