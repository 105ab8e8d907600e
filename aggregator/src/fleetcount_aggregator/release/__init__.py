"""From the agreed set to the signed record: sum, noise, commitment, opening, record."""
