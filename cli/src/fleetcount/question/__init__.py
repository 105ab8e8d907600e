"""Create, sign, submit and steer a question: the files that its operators hand on."""
