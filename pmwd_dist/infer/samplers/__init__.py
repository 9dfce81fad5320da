"""Samplers on pytrees of divided fields: functions of key, state and log density, with the names of blackjax."""
