"""Dashboards and rules as data, what Grafana and Prometheus read of them, and their checks."""
