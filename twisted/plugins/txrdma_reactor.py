from twisted.application.reactors import Reactor

txrdma = Reactor(
    "txrdma", "txrdma.verbs.polling", "epoll(7) that looks at RDMA completion queues before it sleeps."
)
