"""The lab: views and masks as figures and pages."""
