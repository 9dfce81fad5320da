"""Samplers on pytrees of divided fields: functions of key, state and log density, named as in blackjax."""
