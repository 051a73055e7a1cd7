"""Do one trial: build the model, train it, measure it, report plain messages."""
