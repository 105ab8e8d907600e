"""Audits: every line of every statement attacked on the code that aggregators and devices run.

An audit can refute a claim, never prove one; it contains no formula of a loss.
"""
