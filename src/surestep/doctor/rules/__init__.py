"""The rules, a module or a folder each. `surestep.doctor.rule` describes their form."""
