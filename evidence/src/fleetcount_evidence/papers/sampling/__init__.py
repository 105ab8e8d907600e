"""Joy and Gerla, Differential Privacy By Sampling [SP]: experiments and claims."""
