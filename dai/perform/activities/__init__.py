"""The activities: what a perform document can do. Each is declared once; ``dai.perform.activity.ACTIVITIES`` lists
them."""
