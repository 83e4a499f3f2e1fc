from twisted.application.reactors import Reactor

txrdma = Reactor(
    "txrdma", "txrdma.verbs.polling", "epoll(7) that busy-polls RDMA completion queues before it sleeps."
)
