"""Run files to tables, figures and pages."""
