"""What the ranks do: parameter server, learner, actor, evaluator, monitor."""
