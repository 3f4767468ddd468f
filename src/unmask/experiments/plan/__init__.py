"""The program `unmask plan`: what a pre-training run costs on a number of devices, before it is begun."""
