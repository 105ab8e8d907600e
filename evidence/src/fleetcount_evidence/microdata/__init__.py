"""Tables of persons, published so that no sensitive value is too likely in any bucket."""
