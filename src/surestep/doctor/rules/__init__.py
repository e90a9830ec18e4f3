"""The rules, one module each. `surestep.doctor.rule` describes their form."""
